-- Writes reverse keys, which find a task by its id alone, for the tasks that exist. Not on a Cluster: a reverse
-- key shares no slot with its task.
--
-- KEYS   for each: reverse key, task hash   ARGV  1 clock offset; then the queue of each
-- Reply  positions (from 0) of those without a task, for which nothing was written
-- Crash  before: nothing; after: all
local missing = {}
for i = 1, #KEYS / 2 do
  local key, queue = KEYS[2 * i - 1], ARGV[i + 1]
  local life = redis.call('PTTL', KEYS[2 * i])
  if life == -2 then
    missing[#missing + 1] = i - 1
  elseif redis.call('HSETNX', key, 'queue', queue) == 0 and life == -1 and redis.call('HGET', key, 'queue') == queue then
    -- Left behind by an earlier task of the same id; the new one must not lose it.
    redis.call('PERSIST', key)
  end
end
return missing
