-- Plants a mark where none stands.
--
-- KEYS[1]  mark
-- ARGV[1]  value: a flag byte and the token's 32 hexadecimal digits
-- ARGV[2]  time to live in milliseconds
--
-- Output   1 when the mark with this token stands now, and
--          {0, value, milliseconds left} when a foreign one does.
--
-- The token is compared with all that follows the flag, never with a part of it.
-- A request that the client sent twice finds its own token and answers as the
-- first would have. The read comes first: under a crowd most calls are refused,
-- and a refusal must work on a server that is out of memory.
local have = redis.call('GET', KEYS[1])
if not have then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if string.sub(have, 2) == string.sub(ARGV[1], 2) then
  return 1
end
return {0, have, redis.call('PTTL', KEYS[1])}
