-- Sets the time of our own mark. Plants nothing.
--
-- KEYS[1]  mark
-- ARGV[1]  value: a flag byte and the token's 32 hexadecimal digits
-- ARGV[2]  time to live in milliseconds
--
-- Output   1 when the mark with this token stands,
--          {0, '', 0} when none does, and
--          {0, value, milliseconds left} when a foreign one does.
local have = redis.call('GET', KEYS[1])
if not have then
  return {0, '', 0}
end
if string.sub(have, 2) == string.sub(ARGV[1], 2) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
return {0, have, redis.call('PTTL', KEYS[1])}
