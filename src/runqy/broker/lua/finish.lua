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
local now_s_text = string.format('%.0f', now_s)
local completion = '\104' .. varint(now_s)
local workers = {}

-- The worker of a token, as JSON: the tokens of one call are few.
local function worker_of(token)
  local worker = workers[token]
  if not worker then
    worker = cjson.encode(string.match(token, '^(.*)#') or token)
    workers[token] = worker
  end
  return worker
end

-- pending_since of the attempt's record `token pending_since picked-up`, as text.
local function since_of(attempt, token)
  if not attempt then return nil end
  local from = #token + 2
  local to = string.find(attempt, ' ', from, true)
  local since = to and string.sub(attempt, from, to - 1)
  if since == '0' then return nil end
  return since
end

local function ended(h, token, run_us, ok)
  processed = processed + 1
  if not ok then failed = failed + 1 end
  local since = since_us(since_of(h[2], token))
  if since then count(waits, math.max(now - run_us - since, 0)) end
  if run_us > 0 then count(runs, run_us) end
end

local function attempt_line(h, token, run_us, ending, reason)
  local started = now - run_us
  if ending == 'lost' then started = tonumber(string.match(h[2] or '', ' (%d+)$') or '') or now end
  return with_attempt(h[4], (tonumber(h[5] or '') or 0) + 1, worker_of(token), started, now, ending, reason)
end

local function expire_all(id, key, h, expire_at)
  local once_until
  if h[6] then once_until = math.max((tonumber(call('HGET', key, 'once_since') or '') or 0) + 86400, now_s + 1) end
  expire_with(key, prefixes, id, expire_at, h[6], once_until, h[7])
end

local act = {}

function act.C(id, key, h, token, run_us, ttl, has_result, result)
  local score, expire_at = retention(now_s, ttl)
  local attempts = attempt_line(h, token, run_us, 'completed', '')
  -- Only a message that was carried through an attempt before may hold the field already.
  local msg = h[3] and (h[4] and with_completion(h[3], now_s, true) or h[3] .. completion) or ''
  if has_result == '1' then
    call('HSET', key, 'state', 'completed', 'completed_at', now_s_text, 'attempts', attempts, 'result', result, 'msg', msg)
  else
    call('HSET', key, 'state', 'completed', 'completed_at', now_s_text, 'attempts', attempts, 'msg', msg)
  end
  if msg ~= '' and not h[8] then
    call('HDEL', key, 'attempt', 'ahead')
  else
    call('HDEL', key, 'attempt', 'ahead', 'cancel', msg == '' and 'msg' or 'cancel')
  end
  expire_all(id, key, h, expire_at)
  completed[#completed + 1] = score
  completed[#completed + 1] = id
  events[#events + 1] = 'completed ' .. id
  ended(h, token, run_us, true)
end

function act.A(id, key, h, token, run_us, ttl, ending, reason)
  local score, expire_at = retention(now_s, ttl)
  local fields = { 'state', 'archived', 'error_msg', reason, 'last_failed_at', now_s_text, 'attempts',
    attempt_line(h, token, run_us, ending, reason) }
  if h[3] then fields[9], fields[10] = 'msg', with_failure(h[3], tonumber(h[5] or '') or 0, reason, now_s) end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'attempt', 'ahead', 'cancel')
  expire_all(id, key, h, expire_at)
  archived[#archived + 1] = score
  archived[#archived + 1] = id
  events[#events + 1] = 'archived ' .. id
  ended(h, token, run_us, false)
end

function act.R(id, key, h, token, run_us, delay, ending, reason)
  local retried = (tonumber(h[5] or '') or 0) + 1
  local wait = tonumber(delay)
  local fields = { 'error_msg', reason, 'last_failed_at', now_s_text, 'retried', retried, 'attempts',
    attempt_line(h, token, run_us, ending, reason), 'state', 'retry' }
  if h[3] then fields[11], fields[12] = 'msg', with_failure(h[3], retried, reason, now_s) end
  if ending == 'lost' then
    fields[#fields + 1] = 'lost'
    fields[#fields + 1] = (tonumber(call('HGET', key, 'lost') or '') or 0) + 1
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
  ended(h, token, run_us, false)
end

function act.G(id, key, h, token, _, free_loss)
  call('HSET', key, 'state', 'pending', 'pending_since', since_of(h[2], token) or nanoseconds(now))
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
  local h = call('HMGET', key, 'state', 'attempt', 'msg', 'attempts', 'retried', 'once', 'log', 'cancel')
  local mine = h[1] == 'active' and owns(h[2], token)
  if mine and recovering then
    local lease = call('ZSCORE', KEYS[3], id)
    mine = not lease or tonumber(lease) <= now / 1000000
  end
  if mine then
    if h[8] and (kind == 'R' or kind == 'G') then
      -- Its cancellation was asked for: it never starts or tries again.
      act.A(id, key, h, token, run_us, tonumber(call('HGET', key, 'ttl_archived') or '') or ARGV[9], 'cancelled', h[8])
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
