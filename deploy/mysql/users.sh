#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the accounts that grants.sql gives rights to, and one for the demo, in a
# MySQL container whose data directory is new. The image runs it, or sources it
# where it may not be executed. Passwords come from the environment.

# quoted prints a value as a string of SQL.
quoted() {
	local value=${1//\\/\\\\}
	printf "'%s'" "${value//\'/\'\'}"
}

mysql --user=root --password="${MYSQL_ROOT_PASSWORD:?}" <<-SQL
	CREATE USER 'tierlock'@'%' IDENTIFIED BY $(quoted "${TIERLOCK_MYSQL_PASSWORD:?}");

	-- A service and its own database.
	CREATE DATABASE shop;
	CREATE USER 'shop'@'%' IDENTIFIED BY $(quoted "${SHOP_MYSQL_PASSWORD:?}");
	GRANT ALL ON shop.* TO 'shop'@'%';

	-- The demo makes its tables anew in every run, those of the lock included.
	CREATE DATABASE demo;
	CREATE USER 'demo'@'%' IDENTIFIED BY $(quoted "${DEMO_MYSQL_PASSWORD:?}");
	GRANT ALL ON demo.* TO 'demo'@'%';
SQL
