-- SPDX-License-Identifier: Apache-2.0

-- One row per key, never deleted on release.
CREATE TABLE IF NOT EXISTS `lease` (
  -- Namespace, slash, key: bytes, because collations merge keys.
  `lock_key` VARBINARY(320) NOT NULL,
  -- NULL is free; held is a token with expires_at in the future.
  `token` BINARY(16) NULL,
  -- The highest ever reserved for the key.
  `fence` BIGINT UNSIGNED NOT NULL,
  -- Written by every guarded transaction, and by a release.
  `guard` BIGINT UNSIGNED NOT NULL DEFAULT 0,
  -- For people only.
  `holder` VARBINARY(128) NOT NULL,
  -- Times are UTC and written by the server only.
  `acquired_at` DATETIME(6) NOT NULL,
  `expires_at` DATETIME(6) NOT NULL,
  PRIMARY KEY (`lock_key`)
) ENGINE = InnoDB;

-- One row: no key that was swept away ever had a higher fence.
CREATE TABLE IF NOT EXISTS `floor` (
  `id` TINYINT NOT NULL,
  `fence` BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB;

-- What the start-up check writes and reads back; its rows live for a moment.
CREATE TABLE IF NOT EXISTS `canary` (
  `id` BINARY(16) NOT NULL,
  `server_id` BIGINT UNSIGNED NOT NULL,
  `beat` INT NOT NULL,
  `written_at` DATETIME(6) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB;

-- One row per key of a RowLock, made ahead of its first use. No sweeper touches it.
CREATE TABLE IF NOT EXISTS `rowlock` (
  `lock_key` VARBINARY(320) NOT NULL,
  PRIMARY KEY (`lock_key`)
) ENGINE = InnoDB;

-- One row, where the keys are spread over several databases: which of them this
-- one is, and which others there are.
CREATE TABLE IF NOT EXISTS `shard` (
  `id` TINYINT NOT NULL,
  `name` VARBINARY(64) NOT NULL,
  `list` VARBINARY(8192) NOT NULL,
  `recorded_at` DATETIME(6) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS `schema_version` (
  `version` INT NOT NULL,
  `applied_at` DATETIME(6) NOT NULL,
  `readable_by` INT NULL,
  PRIMARY KEY (`version`)
) ENGINE = InnoDB;

INSERT INTO `floor` (`id`, `fence`) VALUES (1, 0) ON DUPLICATE KEY UPDATE `fence` = `fence`;

INSERT INTO `schema_version` (`version`, `applied_at`) VALUES (1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE `version` = `version`;

INSERT INTO `schema_version` (`version`, `applied_at`, `readable_by`) VALUES (2, UTC_TIMESTAMP(6), 1) ON DUPLICATE KEY UPDATE `version` = `version`;
