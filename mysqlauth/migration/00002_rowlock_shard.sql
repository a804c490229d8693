-- SPDX-License-Identifier: Apache-2.0

-- +goose Up
ALTER TABLE `schema_version` ADD COLUMN `readable_by` INT NULL;

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

INSERT INTO `schema_version` (`version`, `applied_at`, `readable_by`) VALUES (2, UTC_TIMESTAMP(6), 1) ON DUPLICATE KEY UPDATE `version` = `version`;

-- +goose Down
DROP TABLE IF EXISTS `rowlock`, `shard`;
DELETE FROM `schema_version` WHERE `version` = 2;
ALTER TABLE `schema_version` DROP COLUMN `readable_by`;
