-- include: clock, message
-- Finds tasks of one queue whose lease ran out, and mends what needs no decision: entries without a task, and
-- active tasks without a lease, which get one (their owner renews it, or it runs out).
--
-- KEYS   1 active list  2 lease zset
-- ARGV   1 clock offset  2 prefix of task hashes  3 lease (s)  4 how many leases, at most
--        5 first position of the active list to look at  6 how many of them
-- Reply  { length of the active list, entries cleaned, tasks }; a task is
--        { id, token, max_retry, retried, lost, ahead, retry_policy, ttl_archived }
-- Crash  before: nothing; after: all. What to do with the tasks is decided by the caller and written by
--        finish.lua, which checks token and lease again.
local call = redis.call
local now = clock()
local now_text = string.format('%.6f', now / 1000000)
local tasks, cleaned = {}, 0

for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[2], '-inf', now_text, 'LIMIT', 0, ARGV[4])) do
  local h = call('HMGET', ARGV[2] .. id, 'state', 'attempt', 'msg', 'max_retry', 'retried', 'lost', 'ahead',
    'retry_policy', 'ttl_archived')
  if h[1] ~= 'active' then
    call('ZREM', KEYS[2], id)
    call('LREM', KEYS[1], 0, id)
    cleaned = cleaned + 1
  else
    local max_retry = h[4]
    if h[3] then max_retry = message_number(h[3], 5) or 0 end
    local token = h[2] and string.match(h[2], '^(%S+) ') or ''
    local retried = tostring(retries_used(h[5], h[3]))
    tasks[#tasks + 1] = { id, token, max_retry and tostring(max_retry) or false, retried, h[6], h[7], h[8], h[9] }
  end
end

for _, id in ipairs(call('LRANGE', KEYS[1], ARGV[5], ARGV[5] + ARGV[6] - 1)) do
  if not call('ZSCORE', KEYS[2], id) then
    if call('HGET', ARGV[2] .. id, 'state') == 'active' then
      call('ZADD', KEYS[2], string.format('%.3f', now / 1000000 + tonumber(ARGV[3])), id)
    else
      call('LREM', KEYS[1], 0, id)
      cleaned = cleaned + 1
    end
  end
end
return { call('LLEN', KEYS[1]), cleaned, tasks }
