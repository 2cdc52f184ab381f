#!lua flags=allow-oom
-- include: clock
-- Removes finished tasks of one queue whose retention is over. Allowed while Redis is out of memory, since it
-- frees some.
--
-- KEYS   1 completed  2 archived
-- ARGV   1 clock offset  2 prefix of task hashes  3 prefix of logs  4 how many per set, at most
--        5 fallback ttl_archived (s)
-- Reply  { how many entries were looked at, ids that are gone }
-- Crash  before: nothing; after: all. The entries of tasks that are gone stay until the caller has deleted their
--        reverse keys and calls sweep.lua, so that whoever purges next finishes what a dead caller began.
local call = redis.call
local now_s = math.floor(clock() / 1000000)
local looked, gone = 0, {}
for set, state in ipairs({ 'completed', 'archived' }) do
  local key_of_set = KEYS[set]
  local found = call('ZRANGEBYSCORE', key_of_set, '-inf', now_s, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
  looked = looked + #found / 2
  local leave = {}
  for i = 1, #found, 2 do
    local id, score = found[i], tonumber(found[i + 1])
    local key = ARGV[2] .. id
    local h = call('HMGET', key, 'state', 'ttl_archived')
    if h[1] == state and state == 'archived' and call('TTL', key) == -1 then
      -- Scored with the moment of archiving, as the original's server does it, and never given an expiry: the
      -- task's own retention counts (R55).
      local ttl = tonumber(h[2] or '') or tonumber(ARGV[5])
      if ttl == 0 then
        call('ZADD', key_of_set, now_s + 3153600000, id)
      elseif score + ttl > now_s then
        call('ZADD', key_of_set, score + ttl, id)
        call('EXPIREAT', key, score + ttl)
      else
        call('UNLINK', key, ARGV[3] .. id)
        gone[#gone + 1] = id
      end
    elseif h[1] == state or not h[1] then
      call('UNLINK', key, ARGV[3] .. id)
      gone[#gone + 1] = id
    else
      leave[#leave + 1] = id
    end
  end
  if #leave > 0 then call('ZREM', key_of_set, unpack(leave)) end
end
return { looked, gone }
