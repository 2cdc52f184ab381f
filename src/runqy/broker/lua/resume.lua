-- Lets one queue run again and wakes idle workers.
--
-- KEYS   1 paused   ARGV  1 clock offset  2 queue  3 wake channel   Reply  1, or 0 if it was not paused
-- Crash  before or after; a worker that misses the wake-up polls within a second
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('PUBLISH', ARGV[3], ARGV[2])
return 1
