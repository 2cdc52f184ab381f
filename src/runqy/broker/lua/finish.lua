-- include: clock, message, account, ending
-- Writes the ends of attempts of one queue's tasks. Whoever no longer owns a task changes nothing.
--
-- KEYS   1 pending  2 active  3 lease  4 completed  5 archived  6 retry  7 processed  8 failed  9 history
-- ARGV   1 clock offset  2 queue  3 prefix of task hashes  4 prefix of logs  5 prefix of idempotency records
--        6 wake channel  7 events channel  8 "1": only tasks whose lease ran out (recovery)
--        9 fallback ttl_archived (s)  10 number of started tasks; then id, token of each: their held-ahead mark goes
--        ends, 7 each: kind, id, token, run time (us), and by kind
--          C complete   ttl (s)             "1" if a result follows   result
--          R retry      delay (s)           ending                    reason
--          A archive    ttl (s)             ending                    reason
--          G give back  "1": a free loss    (empty)                   (empty)
-- Reply  per end: 1 done, 0 not the owner
-- Crash  before: nothing; after: all. Called again, the tokens are gone and nothing changes.
local call = redis.call
local now = clock()
local now_s = math.floor(now / 1000000)
local prefix = ARGV[3]
local prefixes = { log = ARGV[4], once = ARGV[5] }
local recovering = ARGV[8] == '1'
local FIELDS = { 'state', 'attempt', 'msg', 'attempts', 'retried', 'completed_at', 'once', 'once_since', 'log', 'lost',
  'cancel', 'ttl_archived' }

local function owns(attempt, token)
  if token == '' then return not attempt end
  return attempt and string.sub(attempt, 1, #token + 1) == token .. ' '
end

local at = 11
for _ = 1, tonumber(ARGV[10]) do
  local key = prefix .. ARGV[at]
  if owns(call('HGET', key, 'attempt'), ARGV[at + 1]) then call('HDEL', key, 'ahead') end
  at = at + 2
end

local replies, events, released = {}, {}, {}
local completed, archived, retrying, appended, returned = {}, {}, {}, {}, {}
local waits, runs, processed, failed = {}, {}, 0, 0

local function ended(h, run_us, ok)
  processed = processed + 1
  if not ok then failed = failed + 1 end
  local since = h[2] and string.match(h[2], ' (%S+) ')
  since = since_us(since)
  if since and since > 0 then count(waits, math.max(now - run_us - since, 0)) end
  if run_us > 0 then count(runs, run_us) end
end

local function attempt_line(h, token, run_us, ending, reason)
  local worker = string.match(token, '^(.*)#') or token
  local started = now - run_us
  if ending == 'lost' then started = tonumber(string.match(h[2] or '', ' (%d+)$') or '') or now end
  return with_attempt(h[4], (tonumber(h[5] or '') or 0) + 1, worker, started, now, ending, reason)
end

local function once_until(h)
  return math.max((tonumber(h[8] or '') or 0) + 86400, now_s + 1)
end

local act = {}

function act.C(id, key, h, token, run_us, ttl, has_result, result)
  local score, expire_at = retention(now_s, tonumber(ttl))
  local fields = { 'state', 'completed', 'completed_at', now_s, 'attempts',
    attempt_line(h, token, run_us, 'completed', '') }
  if h[3] then fields[7], fields[8] = 'msg', with_completion(h[3], now_s, h[6]) end
  if has_result == '1' then
    fields[#fields + 1] = 'result'
    fields[#fields + 1] = result
  end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'attempt', 'ahead', 'cancel')
  expire_with(key, prefixes, id, expire_at, h[7], once_until(h), h[9])
  completed[#completed + 1] = score
  completed[#completed + 1] = id
  events[#events + 1] = 'completed ' .. id
  ended(h, run_us, true)
end

function act.A(id, key, h, token, run_us, ttl, ending, reason)
  local score, expire_at = retention(now_s, tonumber(ttl))
  local fields = { 'state', 'archived', 'error_msg', reason, 'last_failed_at', now_s, 'attempts',
    attempt_line(h, token, run_us, ending, reason) }
  if h[3] then fields[9], fields[10] = 'msg', with_failure(h[3], tonumber(h[5] or '') or 0, reason, now_s) end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'attempt', 'ahead', 'cancel')
  expire_with(key, prefixes, id, expire_at, h[7], once_until(h), h[9])
  archived[#archived + 1] = score
  archived[#archived + 1] = id
  events[#events + 1] = 'archived ' .. id
  ended(h, run_us, false)
end

function act.R(id, key, h, token, run_us, delay, ending, reason)
  local retried = (tonumber(h[5] or '') or 0) + 1
  local wait = tonumber(delay)
  local fields = { 'error_msg', reason, 'last_failed_at', now_s, 'retried', retried, 'attempts',
    attempt_line(h, token, run_us, ending, reason), 'state', 'retry' }
  if h[3] then fields[11], fields[12] = 'msg', with_failure(h[3], retried, reason, now_s) end
  if ending == 'lost' then
    fields[#fields + 1] = 'lost'
    fields[#fields + 1] = (tonumber(h[10] or '') or 0) + 1
  end
  if wait > 0 then
    retrying[#retrying + 1] = string.format('%.3f', now / 1000000 + wait)
    retrying[#retrying + 1] = id
    events[#events + 1] = 'retry ' .. id
  else
    fields[10] = 'pending'
    fields[#fields + 1] = 'pending_since'
    fields[#fields + 1] = nanoseconds(now)
    appended[#appended + 1] = id
    events[#events + 1] = 'pending ' .. id
  end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'attempt', 'ahead')
  ended(h, run_us, false)
end

function act.G(id, key, h, token, _, free_loss)
  local since = h[2] and string.match(h[2], ' (%S+) ')
  call('HSET', key, 'state', 'pending', 'pending_since', (since and since ~= '0') and since or nanoseconds(now))
  if free_loss == '1' then
    call('HDEL', key, 'attempt')
    call('HINCRBY', key, 'ahead', 1)
  else
    call('HDEL', key, 'attempt', 'ahead')
  end
  -- Called in pickup order; pushed in reverse below, so that the oldest leaves first again.
  table.insert(returned, 1, id)
  events[#events + 1] = 'pending ' .. id
end

for i = at, #ARGV, 7 do
  local kind, id, token, run_us = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local key = prefix .. id
  local h = call('HMGET', key, unpack(FIELDS))
  local mine = h[1] == 'active' and owns(h[2], token)
  if mine and recovering then
    local lease = call('ZSCORE', KEYS[3], id)
    mine = not lease or tonumber(lease) <= now / 1000000
  end
  if mine then
    if h[11] and (kind == 'R' or kind == 'G') then
      -- Its cancellation was asked for: it never starts or tries again.
      act.A(id, key, h, token, run_us, tonumber(h[12] or '') or ARGV[9], 'cancelled', h[11])
    else
      act[kind](id, key, h, token, run_us, ARGV[i + 4], ARGV[i + 5], ARGV[i + 6])
    end
    call('LREM', KEYS[2], -1, id)
    released[#released + 1] = id
  end
  replies[#replies + 1] = mine and 1 or 0
end

if #released > 0 then
  call('ZREM', KEYS[3], unpack(released))
  if #completed > 0 then call('ZADD', KEYS[4], unpack(completed)) end
  if #archived > 0 then call('ZADD', KEYS[5], unpack(archived)) end
  if #retrying > 0 then call('ZADD', KEYS[6], unpack(retrying)) end
  local added = #returned + #appended
  local length = 0
  if #returned > 0 then length = call('RPUSH', KEYS[1], unpack(returned)) end
  if #appended > 0 then length = call('LPUSH', KEYS[1], unpack(appended)) end
  if added > 0 and length == added then call('PUBLISH', ARGV[6], ARGV[2]) end
  account({ processed = KEYS[7], failed = KEYS[8], history = KEYS[9] }, now_s, processed, failed, waits, runs)
  call('PUBLISH', ARGV[7], table.concat(events, '\n'))
end
return replies
