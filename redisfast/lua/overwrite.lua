-- Plants a mark in place of whatever stands, but for a foreign flagged one.
--
-- KEYS[1]  mark
-- ARGV[1]  value: a flag byte and the token's 32 hexadecimal digits
-- ARGV[2]  time to live in milliseconds
--
-- Output   1 when the mark with this token stands now, and
--          {0, value, milliseconds left} when a foreign flagged one does.
--
-- The pattern keeps a stranger's string that merely begins with the flag from
-- passing for a flagged mark. The read also refuses a key of another type
-- (WRONGTYPE), which a bare SET would replace.
local have = redis.call('GET', KEYS[1])
if have
  and string.find(have, '^!' .. string.rep('%x', 32) .. '$')
  and string.sub(have, 2) ~= string.sub(ARGV[1], 2)
then
  return {0, have, redis.call('PTTL', KEYS[1])}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
