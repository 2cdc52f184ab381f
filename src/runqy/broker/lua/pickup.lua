-- include: clock, message, account, once, ending
-- Takes tasks for a worker from one or several queues, the first queue first. On a Cluster: from one queue.
--
-- KEYS   per queue 9: pending, active, lease, paused, archived, processed, failed, history, holes
-- ARGV   1 clock offset  2 how many  3 how many ids to look at, at most (an expired one counts for 8)
--        4 token of this call  5 lease (s)  6 how many of them start at once; the others are marked as held
--        ahead
--        7 "1" if the answer to an earlier call with this token was lost
--        8 fallback pending_timeout (s)  9 fallback ttl_archived (s)
--        per queue 5: name, prefix of task hashes, prefix of logs, prefix of idempotency records, events channel
-- Reply  { tasks that were expired (flat: queue index, id), number of ids without a task, more?, now (us),
--          tasks }; a task is a list: msg, pending_since, pending_timeout, active_timeout, ttl_completed,
--          ttl_archived, retried, id, queue index, held ahead?; then retry_policy, handler, and type, payload,
--          max_retry of a task without a message
-- Crash  before: nothing; after: all. A task taken by a call whose answer was lost is found by the token, or
--        goes back when its lease runs out. An id without a task goes to the janitor, who deletes its reverse key.
local call = redis.call
local now = clock()
local now_s = math.floor(now / 1000000)
local now_text = string.format('%.0f', now)
local want, bound, token = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local lease = string.format('%.3f', now / 1000000 + tonumber(ARGV[5]))
local starting = tonumber(ARGV[6])
local fallback_timeout = tonumber(ARGV[8])
local tasks, expired, dropped, looked = {}, {}, 0, 0
local EXPIRY_COST = 8

local function read(key)
  return call('HMGET', key, 'msg', 'pending_since', 'pending_timeout', 'active_timeout', 'ttl_completed',
    'ttl_archived', 'retried', 'state', 'more')
end

-- What only few tasks have; among them those without a message, put there by hand. False if there is no task.
local function read_more(key, h)
  if h[1] and not h[9] then return true end
  local more = call('HMGET', key, 'retry_policy', 'handler', 'type', 'payload', 'max_retry')
  for i = 1, 5 do h[10 + i] = more[i] end
  return h[1] or more[3] or more[4]
end

local function hand_over(h, q, id, ahead)
  h[8], h[9], h[10] = id, q, ahead
  tasks[#tasks + 1] = h
end

local function expire(q, id, key, h, waited)
  local reason = 'pending timeout: waited ' .. go_seconds(math.floor(waited / 1000000)) .. ' before pickup'
  local ttl = tonumber(h[6] or '') or tonumber(ARGV[9])
  local score, expire_at = retention(now_s, ttl)
  local retried = retries_used(h[7], h[1])
  local more = call('HMGET', key, 'attempts', 'once', 'once_since', 'log')
  local attempts = with_line(more[1], attempt_line(retried + 1, '""', now, 0, 'expired', reason))
  local fields = { 'state', 'archived', 'error_msg', reason, 'last_failed_at', now_s, 'attempts', attempts }
  if h[1] then
    fields[9], fields[10] = 'msg', with_failure(h[1], retried, reason, now_s)
  end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'pending_since', 'ahead')
  call('ZADD', KEYS[9 * q - 4], score, id)
  expire_with(key, { log = ARGV[7 + 5 * q], once = ARGV[8 + 5 * q] }, id, expire_at, more[2],
    more[3], now_s, more[4])
  expired[#expired + 1] = q
  expired[#expired + 1] = id
end

-- What an earlier call with this token took, from all queues, in the order in which it took them.
local function find_taken()
  for q = 1, #KEYS / 9 do
    local ids = call('LRANGE', KEYS[9 * q - 7], 0, -1)
    for i = #ids, 1, -1 do
      local key = ARGV[6 + 5 * q] .. ids[i]
      local held = call('HGET', key, 'attempt')
      if held and string.sub(held, 1, #token + 1) == token .. ' ' then
        local h = read(key)
        read_more(key, h)
        h[2] = string.match(held, ' (%S+) ')
        hand_over(h, q, ids[i], call('HEXISTS', key, 'ahead'))
      end
    end
  end
  return #tasks > 0
end

if ARGV[7] == '1' and find_taken() then want = 0 end

for q = 1, #KEYS / 9 do
  if #tasks >= want or looked >= bound then break end
  local base = 9 * (q - 1)
  local pending, active, lease_key = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  local prefix = ARGV[6 + 5 * q]
  if call('EXISTS', KEYS[base + 4]) == 0 then
    local taken, leases, waits, ended = {}, {}, {}, {}
    while #tasks < want and looked < bound do
      -- No more at once than could all be expired within the bound.
      local ids = call('RPOP', pending, math.min(want - #tasks, math.ceil((bound - looked) / EXPIRY_COST)))
      if not ids then break end
      for _, id in ipairs(ids) do
        looked = looked + 1
        if id == '' then
          -- A blank left by a task that was taken out of a long list.
          if call('DECR', KEYS[base + 9]) <= 0 then call('DEL', KEYS[base + 9]) end
        else
          local key = prefix .. id
          local h = read(key)
          if (h[8] and h[8] ~= 'pending') or not read_more(key, h) then
            -- No task behind the id, or the task is elsewhere: only this entry goes.
            dropped = dropped + 1
            if not h[1] and not h[13] and not h[14] then
              call('UNLINK', key)
              call('ZADD', KEYS[base + 5], 0, id)
            end
          else
            local limit = tonumber(h[3] or '') or fallback_timeout
            local waited = 0
            if limit > 0 then
              local since = since_us(h[2])
              if since then waited = now - since end
            end
            if limit > 0 and waited > limit * 1000000 then
              expire(q, id, key, h, waited)
              count(waits, waited)
              looked = looked + EXPIRY_COST - 1
              ended[#ended + 1] = id
            else
              local n = #tasks + 1
              call('HSET', key, 'state', 'active', 'attempt', token .. ' ' .. (h[2] or '0') .. ' ' .. now_text)
              if n > starting then
                call('HDEL', key, 'pending_since')
                call('HSETNX', key, 'ahead', 0)
              else
                call('HDEL', key, 'pending_since', 'ahead')
              end
              hand_over(h, q, id, n > starting and 1 or 0)
              taken[#taken + 1] = id
              leases[#leases + 1] = lease
              leases[#leases + 1] = id
            end
          end
        end
      end
    end
    if #taken > 0 then
      call('LPUSH', active, unpack(taken))
      call('ZADD', lease_key, unpack(leases))
    end
    if #ended > 0 then
      account({ processed = KEYS[base + 6], failed = KEYS[base + 7], history = KEYS[base + 8] }, now_s, #ended, #ended,
        waits, {})
      call('PUBLISH', ARGV[9 + 5 * q], 'archived ' .. table.concat(ended, ' '))
    end
  end
end
return { expired, dropped, (looked >= bound and #tasks < want) and 1 or 0, now_text, tasks }
