#!lua flags=allow-oom
-- include: clock
-- Removes finished tasks of one queue whose retention is over. Allowed while Redis is out of memory, since it
-- frees some.
--
-- KEYS   1 completed  2 archived
-- ARGV   1 clock offset  2 prefix of task hashes  3 prefix of logs  4 how many per set, at most
-- Reply  { how many entries were looked at, ids that are gone }
-- Crash  before: nothing; after: all. The reverse keys of the ids are deleted by the caller; an id whose caller
--        died has a reverse key that expires by itself.
local call = redis.call
local now_s = math.floor(clock() / 1000000)
local looked, gone = 0, {}
for set, state in ipairs({ 'completed', 'archived' }) do
  local key_of_set = KEYS[set]
  local ids = call('ZRANGEBYSCORE', key_of_set, '-inf', now_s, 'LIMIT', 0, ARGV[4])
  looked = looked + #ids
  local leave = {}
  for _, id in ipairs(ids) do
    local key = ARGV[2] .. id
    local h = call('HMGET', key, 'state', 'ttl_' .. state, state == 'completed' and 'completed_at' or 'last_failed_at')
    local ttl, ended = tonumber(h[2] or ''), tonumber(h[3] or '')
    if h[1] == state and state == 'archived' and ttl and ended and (ttl == 0 or ended + ttl > now_s)
      and call('TTL', key) == -1 then
      -- An entry scored with the moment of archiving, as the original's server writes it: the task's own
      -- retention counts (R55).
      if ttl == 0 then
        call('ZADD', key_of_set, now_s + 3153600000, id)
      else
        call('ZADD', key_of_set, ended + ttl, id)
        call('EXPIREAT', key, ended + ttl)
      end
    else
      leave[#leave + 1] = id
      if h[1] == state or not h[1] then
        call('UNLINK', key, ARGV[3] .. id)
        gone[#gone + 1] = id
      end
    end
  end
  if #leave > 0 then call('ZREM', key_of_set, unpack(leave)) end
end
return { looked, gone }
