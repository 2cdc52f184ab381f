-- Gives reverse keys the life of their ended tasks. Not on a Cluster: they share no slot.
-- KEYS   reverse keys   ARGV  1 clock offset; then for each: seconds to live, or -1 to delete it
-- Reply  1   Crash  some may be left as they were; the janitor deletes them with the history entry
for i, key in ipairs(KEYS) do
  local ttl = tonumber(ARGV[i + 1])
  if ttl > 0 then redis.call('EXPIRE', key, ttl) else redis.call('DEL', key) end
end
return 1
