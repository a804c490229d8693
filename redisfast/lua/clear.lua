-- Deletes the mark if it is still ours, and tells those who wait for the key.
--
-- KEYS[1]  mark
-- ARGV[1]  the token's 32 hexadecimal digits
-- ARGV[2]  channel of the key's wake-ups, or '' to tell nobody
--
-- Output   1 when it deleted the mark, 0 when there was nothing of ours.
--
-- The channel is an argument and no key, so that it needs no slot of its own: a
-- cluster carries a message to every node. It is told whether or not a mark was
-- deleted, since the mark says nothing about the row that was freed.
local have = redis.call('GET', KEYS[1])
local deleted = 0
if have and string.sub(have, 2) == ARGV[1] then
  deleted = redis.call('DEL', KEYS[1])
end
if ARGV[2] ~= '' then
  redis.call('PUBLISH', ARGV[2], '1')
end
return deleted
