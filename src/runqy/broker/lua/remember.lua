-- Writes reverse keys, which find a task by its id alone. Not on a Cluster: they share no slot.
-- KEYS   reverse keys   ARGV  1 clock offset; then the queue of each
-- Reply  1   Crash  some may be written; an enqueue that is repeated writes them again
for i, key in ipairs(KEYS) do
  if redis.call('HSETNX', key, 'queue', ARGV[i + 1]) == 0 and redis.call('HGET', key, 'queue') == ARGV[i + 1] then
    -- Left behind by an earlier task of the same id; the new one must not lose it.
    redis.call('PERSIST', key)
  end
end
return 1
