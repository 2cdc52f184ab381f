-- include: clock, message, account, once, ending, places
-- Archives waiting tasks of one queue without running them (operator's archive, and cancel). With cancel, an
-- active task is marked: its worker stops it, and if it dies first, recovery does.
--
-- KEYS   1 pending  2 scheduled  3 retry  4 archived  5 holes  6 processed  7 failed  8 history
-- ARGV   1 clock offset  2 prefix of task hashes  3 prefix of logs  4 prefix of idempotency records
--        5 events channel  6 cancel channel  7 states in which it is legal  8 ending  9 reason
--        10 fallback ttl_archived (s); then the ids
-- Reply  per id: the state in which the task was found, empty for one that is gone
-- Crash  before: nothing; after: all
local call = redis.call
local now = clock()
local now_s = math.floor(now / 1000000)
local keys = { pending = KEYS[1], scheduled = KEYS[2], retry = KEYS[3], holes = KEYS[5] }
local prefix, legal, reason = ARGV[2], set_of(ARGV[7]), ARGV[9]
local prefixes = { log = ARGV[3], once = ARGV[4] }
local replies, events, waits = {}, {}, {}
for i = 11, #ARGV do
  local id = ARGV[i]
  local key = prefix .. id
  local h = call('HMGET', key, 'state', 'pending_since', 'msg', 'attempts', 'retried', 'ttl_archived', 'once',
    'once_since', 'log')
  local state = h[1]
  if state == 'active' and legal.active then
    call('HSET', key, 'cancel', reason, 'more', 1)
    call('PUBLISH', ARGV[6], id)
  elseif state and legal[state] then
    local since = since_us(h[2])
    leave(keys, prefix, id, state, since)
    local retried = retries_used(h[5], h[3])
    local score, expire_at = retention(now_s, tonumber(h[6] or '') or ARGV[10])
    local fields = { 'state', 'archived', 'error_msg', reason, 'last_failed_at', now_s, 'attempts',
      with_line(h[4], attempt_line(retried + 1, '""', now, 0, ARGV[8], reason)) }
    if h[3] then fields[9], fields[10] = 'msg', with_failure(h[3], retried, reason, now_s) end
    call('HSET', key, unpack(fields))
    call('HDEL', key, 'pending_since', 'ahead')
    call('ZADD', KEYS[4], score, id)
    expire_with(key, prefixes, id, expire_at, h[7], h[8], now_s, h[9])
    events[#events + 1] = id
    if since then count(waits, math.max(now - since, 0)) end
  end
  replies[#replies + 1] = state or ''
end
if #events > 0 then
  account({ processed = KEYS[6], failed = KEYS[7], history = KEYS[8] }, now_s, #events, #events, waits, {})
  call('PUBLISH', ARGV[5], 'archived ' .. table.concat(events, ' '))
end
return replies
