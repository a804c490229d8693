-- SPDX-License-Identifier: Apache-2.0

-- +goose Up
-- One row per request, from its first attempt until its retention has passed.
CREATE TABLE IF NOT EXISTS `idempotency` (
  -- Bytes, because collations merge keys.
  `namespace` VARBINARY(63) NOT NULL,
  `scope` VARBINARY(255) NOT NULL,
  `request_key` VARBINARY(255) NOT NULL,
  -- 1 started, 2 completed, 3 failed for good, 4 spent.
  `state` TINYINT UNSIGNED NOT NULL,
  `fingerprint` VARBINARY(64) NOT NULL,
  -- Whose turn it is, or whose answer; NULL is nobody's: the next may go on.
  `attempt` BINARY(16) NULL,
  `attempts` INT UNSIGNED NOT NULL,
  -- What the keys of its effects outside the database are derived from.
  `seed` BINARY(16) NOT NULL,
  -- The last step that is done, of a request with effects outside the database.
  `recovery_point` VARBINARY(64) NOT NULL,
  `in_progress_until` DATETIME(6) NULL,
  `codec` SMALLINT UNSIGNED NOT NULL,
  -- The answer; of a started request, what its last step returned.
  `result` LONGBLOB NULL,
  -- Times are UTC and written by the server only.
  `created_at` DATETIME(6) NOT NULL,
  `completed_at` DATETIME(6) NULL,
  `expires_at` DATETIME(6) NOT NULL,
  PRIMARY KEY (`namespace`, `scope`, `request_key`),
  KEY `expires_at` (`expires_at`)
) ENGINE = InnoDB;

-- The highest fence seen of each lock's key, where leases are in another database.
CREATE TABLE IF NOT EXISTS `idempotency_fence` (
  `lock_key` VARBINARY(320) NOT NULL,
  `fence` BIGINT UNSIGNED NOT NULL,
  `raised_at` DATETIME(6) NOT NULL,
  PRIMARY KEY (`lock_key`)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `idempotency_version` (
  `version` INT NOT NULL,
  `applied_at` DATETIME(6) NOT NULL,
  `readable_by` INT NOT NULL,
  PRIMARY KEY (`version`)
) ENGINE = InnoDB;

INSERT INTO `idempotency_version` (`version`, `applied_at`, `readable_by`) VALUES (1, UTC_TIMESTAMP(6), 1) ON DUPLICATE KEY UPDATE `version` = `version`;

-- +goose Down
DROP TABLE IF EXISTS `idempotency`, `idempotency_fence`, `idempotency_version`;
