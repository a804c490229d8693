-- SPDX-License-Identifier: Apache-2.0

-- Rights on the tables of schema.sql, which must be there. The accounts are made
-- elsewhere, so that no password stands in a file:
--   CREATE USER 'tierlock'@'%' IDENTIFIED BY '...';
--   CREATE USER 'shop'@'%' IDENTIFIED BY '...';

-- The lock itself: rows of its own tables, and nothing else. Tables are made by
-- whoever deploys.
GRANT SELECT, INSERT, UPDATE, DELETE ON `tierlock`.`lease` TO 'tierlock'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tierlock`.`floor` TO 'tierlock'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tierlock`.`canary` TO 'tierlock'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tierlock`.`rowlock` TO 'tierlock'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tierlock`.`shard` TO 'tierlock'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tierlock`.`schema_version` TO 'tierlock'@'%';

-- A business user, an example: its transactions prove their tenure on the lease
-- table, beside whatever rights it has on tables of its own.
GRANT SELECT, UPDATE ON `tierlock`.`lease` TO 'shop'@'%';
