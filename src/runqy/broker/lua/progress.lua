-- Keeps the newest progress of a running task. Only while its worker holds it.
--
-- KEYS   1 task hash   ARGV  1 clock offset  2 token  3 progress (JSON)  4 channel of the task
-- Reply  1, or 0 if the caller no longer owns the task   Crash  before: nothing; after: all
local held = redis.call('HGET', KEYS[1], 'attempt')
if not held or string.sub(held, 1, #ARGV[2] + 1) ~= ARGV[2] .. ' ' then return 0 end
redis.call('HSET', KEYS[1], 'progress', ARGV[3])
redis.call('PUBLISH', ARGV[4], 'progress ' .. ARGV[3])
return 1
