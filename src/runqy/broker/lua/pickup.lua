-- include: clock, message, account, ending
-- Takes tasks for a worker from one or several queues, the first queue first. On a Cluster: from one queue.
--
-- KEYS   per queue 9: pending, active, lease, paused, archived, processed, failed, history, holes
-- ARGV   1 clock offset  2 how many  3 how many ids to look at, at most  4 token of this call  5 lease (s)
--        6 how many of them start at once; the others are marked as held ahead
--        7 "1" if the answer to an earlier call with this token was lost
--        8 fallback pending_timeout (s)  9 fallback ttl_archived (s)
--        per queue 5: name, prefix of task hashes, prefix of logs, prefix of idempotency records, events channel
-- Reply  { number expired, number of ids without a task, ids whose task is gone or was expired
--          (flat: queue index, id, ttl or -1), more?, tasks }; a task is { queue index, id, ahead?, now, fields }
-- Crash  before: nothing; after: all. A task taken by a call whose answer was lost is found by the token, or
--        goes back when its lease runs out.
local call = redis.call
local now = clock()
local now_s = math.floor(now / 1000000)
local want, bound, token = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local lease = string.format('%.3f', now / 1000000 + tonumber(ARGV[5]))
local starting = tonumber(ARGV[6])
local FIELDS = { 'msg', 'state', 'pending_since', 'pending_timeout', 'ttl_archived', 'active_timeout', 'ttl_completed',
  'retried', 'src', 'retry_policy', 'handler', 'attempts', 'once', 'once_since', 'log', 'type' }
local tasks, gone, expired, dropped, looked = {}, {}, 0, 0, 0

local function reply_for(q, id, ahead, h, since)
  local fields = { h[1], since or false, h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11] }
  if not h[1] then
    fields[11] = call('HMGET', ARGV[6 + 5 * q] .. id, 'type', 'payload', 'max_retry')
  end
  return { q, id, ahead and 1 or 0, string.format('%.0f', now), fields }
end

local function expire(q, id, key, h, waited, waits)
  local keys = { archived = KEYS[9 * q - 4] }
  local reason = 'pending timeout: waited ' .. go_seconds(math.floor(waited / 1000000)) .. ' before pickup'
  local ttl = tonumber(h[5] or '') or tonumber(ARGV[9])
  local score, expire_at = retention(now_s, ttl)
  local retried = tonumber(h[8] or '') or 0
  local attempts = with_attempt(h[12], retried + 1, '', now - waited, now, 'expired', reason)
  local fields = { 'state', 'archived', 'error_msg', reason, 'last_failed_at', now_s, 'attempts', attempts }
  if h[1] then
    fields[9], fields[10] = 'msg', with_failure(h[1], retried, reason, now_s)
  end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'pending_since', 'ahead')
  call('ZADD', keys.archived, score, id)
  expire_with(key, { log = ARGV[7 + 5 * q], once = ARGV[8 + 5 * q] }, id, expire_at, h[13],
    math.max((tonumber(h[14] or '') or 0) + 86400, now_s + 1), h[15])
  count(waits, waited)
  gone[#gone + 1] = q
  gone[#gone + 1] = id
  gone[#gone + 1] = ttl
end

for q = 1, #KEYS / 9 do
  local base = 9 * (q - 1)
  local pending, active, lease_key = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  local prefix = ARGV[6 + 5 * q]
  local found = {}
  if ARGV[7] == '1' then
    for _, id in ipairs(call('LRANGE', active, 0, -1)) do
      local key = prefix .. id
      local held = call('HGET', key, 'attempt')
      if held and string.sub(held, 1, #token + 1) == token .. ' ' then
        local h = call('HMGET', key, unpack(FIELDS))
        tasks[#tasks + 1] = reply_for(q, id, call('HEXISTS', key, 'ahead') == 1, h, string.match(held, ' (%S+) '))
        found[#found + 1] = id
      end
    end
  end
  if #found == 0 and call('EXISTS', KEYS[base + 4]) == 0 then
    local taken, leases, waits, ended, ended_ids = {}, {}, {}, 0, {}
    while #tasks < want and looked < bound do
      local ids = call('RPOP', pending, math.min(want - #tasks, bound - looked))
      if not ids then break end
      for _, id in ipairs(ids) do
        looked = looked + 1
        local key = prefix .. id
        if id == '' and call('DECR', KEYS[base + 9]) <= 0 then call('DEL', KEYS[base + 9]) end
        local h = id == '' and {} or call('HMGET', key, unpack(FIELDS))
        if (not h[1] and not h[16]) or (h[2] and h[2] ~= 'pending') then
          -- No task behind the id, or the task is elsewhere: only this entry goes.
          if id ~= '' then dropped = dropped + 1 end
          if id ~= '' and not h[1] and not h[16] then
            call('UNLINK', key)
            gone[#gone + 1] = q
            gone[#gone + 1] = id
            gone[#gone + 1] = -1
          end
        else
          local since = since_us(h[3])
          local limit = tonumber(h[4] or '') or tonumber(ARGV[8])
          local waited = since and math.max(now - since, 0) or 0
          if limit > 0 and waited > limit * 1000000 then
            expire(q, id, key, h, waited, waits)
            expired = expired + 1
            ended = ended + 1
            ended_ids[#ended_ids + 1] = 'archived ' .. id
          else
            local ahead = #tasks >= starting
            call('HSET', key, 'state', 'active', 'attempt', token .. ' ' .. (h[3] or '0') .. string.format(' %.0f', now))
            if ahead then
              call('HDEL', key, 'pending_since')
              call('HSETNX', key, 'ahead', 0)
            else
              call('HDEL', key, 'pending_since', 'ahead')
            end
            taken[#taken + 1] = id
            leases[#leases + 1] = lease
            leases[#leases + 1] = id
            tasks[#tasks + 1] = reply_for(q, id, ahead, h, h[3])
          end
        end
      end
    end
    if #taken > 0 then
      call('LPUSH', active, unpack(taken))
      call('ZADD', lease_key, unpack(leases))
    end
    if ended > 0 then
      account({ processed = KEYS[base + 6], failed = KEYS[base + 7], history = KEYS[base + 8] }, now_s, ended, ended,
        waits, {})
      call('PUBLISH', ARGV[9 + 5 * q], table.concat(ended_ids, '\n'))
    end
  end
  if #tasks >= want or looked >= bound then break end
end
return { expired, dropped, gone, (looked >= bound and #tasks < want) and 1 or 0, tasks }
