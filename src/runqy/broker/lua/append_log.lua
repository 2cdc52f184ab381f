-- Appends to what a task printed; the newest 64 KiB stay. Only while its worker holds it.
--
-- KEYS   1 task hash  2 log
-- ARGV   1 clock offset  2 token  3 text  4 bound (bytes)  5 channel of the task
-- Reply  1, or 0 if the caller no longer owns the task
-- Crash  before: nothing; after: all
local held = redis.call('HGET', KEYS[1], 'attempt')
if not held or string.sub(held, 1, #ARGV[2] + 1) ~= ARGV[2] .. ' ' then return 0 end
local bound = tonumber(ARGV[4])
local size = redis.call('APPEND', KEYS[2], ARGV[3])
if size == #ARGV[3] then redis.call('HSET', KEYS[1], 'log', 1, 'more', 1) end
if size > 2 * bound then redis.call('SET', KEYS[2], redis.call('GETRANGE', KEYS[2], -bound, -1)) end
redis.call('PUBLISH', ARGV[5], 'log ' .. ARGV[3])
return 1
