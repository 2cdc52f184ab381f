-- include: clock, message, account, once, ending, holding
-- Writes the ends of attempts that were no success, and tasks given back. Whoever no longer owns a task changes
-- nothing.
--
-- KEYS   1 pending  2 active  3 lease  4 archived  5 retry  6 processed  7 failed  8 history
-- ARGV   1 clock offset  2 queue  3 prefix of task hashes  4 prefix of logs  5 prefix of idempotency records
--        6 wake channel  7 events channel  8 "1": only tasks whose lease ran out (recovery)
--        9 fallback ttl_archived (s)  10 number of started tasks; then id, token of each: their held-ahead mark goes
--        ends, 7 each: kind, id, token, run time (us), and by kind
--          R retry      delay (s)           ending      reason
--          A archive    ttl (s)             ending      reason
--          G give back  "1": a free loss    (empty)     (empty)
-- Reply  per end: 1 done, 0 not the owner
-- Crash  before: nothing; after: all. Called again, the tokens are gone and nothing changes.
local call = redis.call
local now = clock()
local now_s = math.floor(now / 1000000)
local now_s_text = string.format('%.0f', now_s)
local prefix = ARGV[3]
local prefixes = { log = ARGV[4], once = ARGV[5] }
local recovering = ARGV[8] == '1'

local at = 11
for _ = 1, tonumber(ARGV[10]) do
  local key = prefix .. ARGV[at]
  if owns(call('HGET', key, 'attempt'), ARGV[at + 1]) then call('HDEL', key, 'ahead') end
  at = at + 2
end

local replies, events, released = {}, {}, {}
local archived, retrying, appended, returned = {}, {}, {}, {}
local waits, runs, failed = {}, {}, 0

-- pending_since of the attempt's record, as text; nil where there is none.
local function since_of(attempt, token)
  local since = attempt and string.match(attempt, '^(%d+) ', #token + 2)
  if since == '0' then return nil end
  return since
end

local function count_failure(h, token, run_us)
  failed = failed + 1
  local since = since_us(since_of(h[2], token))
  if since then
    -- Nobody knows how long a lost attempt ran; it waited until it was picked up.
    local begun = recovering and tonumber(string.match(h[2], ' (%d+)$') or '') or now - run_us
    count(waits, math.max(begun - since, 0))
  end
  if run_us > 0 then count(runs, run_us) end
end

local function attempts_with(h, token, run_us, ending, reason)
  -- Nobody knows when a lost task really ended: its time is counted from the pickup.
  if ending == 'lost' then run_us = now - (tonumber(string.match(h[2] or '', ' (%d+)$') or '') or now) end
  return with_line(h[4], attempt_line(h[5] + 1, worker_of(token), now, run_us, ending, reason))
end

local act = {}

function act.A(id, key, h, token, run_us, ttl, ending, reason)
  local score, expire_at = retention(now_s, ttl)
  local fields = { 'state', 'archived', 'error_msg', reason, 'last_failed_at', now_s_text, 'attempts',
    attempts_with(h, token, run_us, ending, reason) }
  if h[3] then fields[9], fields[10] = 'msg', with_failure(h[3], h[5], reason, now_s) end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'attempt', 'ahead', 'cancel')
  expire_with(key, prefixes, id, expire_at, h[6], h[6] and call('HGET', key, 'once_since'), now_s, h[7])
  archived[#archived + 1] = score
  archived[#archived + 1] = id
  events[#events + 1] = 'archived ' .. id
  count_failure(h, token, run_us)
end

function act.R(id, key, h, token, run_us, delay, ending, reason)
  local retried = h[5] + 1
  local wait = tonumber(delay)
  local fields = { 'error_msg', reason, 'last_failed_at', now_s_text, 'retried', retried, 'attempts',
    attempts_with(h, token, run_us, ending, reason), 'state', 'retry' }
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
  count_failure(h, token, run_us)
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
    h[5] = retries_used(h[5], h[3])
    if h[8] and (kind ~= 'A' or recovering) then
      -- Its cancellation was asked for: it never starts or tries again.
      act.A(id, key, h, token, run_us, tonumber(call('HGET', key, 'ttl_archived') or '') or ARGV[9], 'cancelled', h[8])
    else
      act[kind](id, key, h, token, run_us, ARGV[i + 4], ARGV[i + 5], ARGV[i + 6])
    end
    released[#released + 1] = id
  end
  replies[#replies + 1] = mine and 1 or 0
end

if #released > 0 then
  release(KEYS[2], KEYS[3], released)
  if #archived > 0 then call('ZADD', KEYS[4], unpack(archived)) end
  if #retrying > 0 then call('ZADD', KEYS[5], unpack(retrying)) end
  local added = #returned + #appended
  local length = 0
  if #returned > 0 then length = call('RPUSH', KEYS[1], unpack(returned)) end
  if #appended > 0 then length = call('LPUSH', KEYS[1], unpack(appended)) end
  if added > 0 and length == added then call('PUBLISH', ARGV[6], ARGV[2]) end
  account({ processed = KEYS[6], failed = KEYS[7], history = KEYS[8] }, now_s, failed, failed, waits, runs)
  call('PUBLISH', ARGV[7], table.concat(events, '\n'))
end
return replies
