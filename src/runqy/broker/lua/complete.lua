-- include: clock, message, account, once, ending, holding
-- Writes the successful ends of attempts of one queue's tasks that are kept for the same time. Whoever no longer
-- owns a task changes nothing. The most frequent script after enqueue, so it reads and formats little.
--
-- KEYS   1 active  2 lease  3 completed  4 processed  5 failed  6 history
-- ARGV   1 clock offset  2 prefix of task hashes  3 prefix of logs  4 prefix of idempotency records
--        5 events channel  6 ttl_completed (s)  7 "1": results follow  8 number of tokens; the tokens
--        ends: id, number of its token, run time (ms), bucket of its wait (or empty), bucket of its run time
--        (or empty), result
-- Reply  per end: 1 done, 0 not the owner
-- Crash  before: nothing; after: all. Called again, the tokens are gone and nothing changes.
local call, find = redis.call, string.find
local now = clock()
local now_s = math.floor(now / 1000000)
local now_s_text = string.format('%.0f', now_s)
local prefix, kept_results = ARGV[2], ARGV[7] == '1'
local prefixes = { log = ARGV[3], once = ARGV[4] }
local score, expire_at = retention(now_s, ARGV[6])
local completion = '\104' .. varint(now_s)
local first = 9 + ARGV[8]
local end_ms = string.format('%.0f', math.floor(now / 1000))
local holds, said = {}, {}
for i = 9, first - 1 do
  local number = string.format('%d', i - 8)
  holds[number] = ARGV[i] .. ' '
  said[number] = ',' .. worker_of(ARGV[i]) .. ',' .. end_ms .. ','
end

local replies, ids, scores, waits, runs = {}, {}, {}, {}, {}

-- What only few tasks have.
local function settle_more(id, key)
  local h = call('HMGET', key, 'once', 'once_since', 'log')
  call('HDEL', key, 'cancel')
  expire_with(key, prefixes, id, expire_at, h[1], h[2], now_s, h[3])
end

for i = first, #ARGV, kept_results and 6 or 5 do
  local id, number = ARGV[i], ARGV[i + 1]
  local key = prefix .. id
  local h = call('HMGET', key, 'attempt', 'msg', 'attempts', 'retried', 'more')
  if h[1] and find(h[1], holds[number], 1, true) == 1 then
    local line = '[' .. (h[4] and h[4] + 1 or '1') .. said[number] .. ARGV[i + 2] .. ',"completed",""]'
    local msg = h[2] or ''
    if h[3] then
      line = with_line(h[3], line)
      -- Only a message that was carried through an attempt before may hold the field already.
      msg = splice(msg, COMPLETION_FIELD, completion)
    else
      msg = msg .. completion
    end
    if kept_results then
      call('HSET', key, 'state', 'completed', 'msg', msg, 'completed_at', now_s_text, 'attempts', line, 'result',
        ARGV[i + 5])
    else
      call('HSET', key, 'state', 'completed', 'msg', msg, 'completed_at', now_s_text, 'attempts', line)
    end
    call('HDEL', key, 'attempt', 'ahead')
    if not h[2] then call('HDEL', key, 'msg') end
    if h[5] then
      settle_more(id, key)
    elseif expire_at then
      call('EXPIREAT', key, expire_at)
    end
    local n = #ids + 1
    ids[n] = id
    scores[2 * n - 1], scores[2 * n] = score, id
    local bucket = ARGV[i + 3]
    if bucket ~= '' then waits[bucket] = (waits[bucket] or 0) + 1 end
    bucket = ARGV[i + 4]
    if bucket ~= '' then runs[bucket] = (runs[bucket] or 0) + 1 end
    replies[#replies + 1] = 1
  else
    replies[#replies + 1] = 0
  end
end

if #ids > 0 then
  release(KEYS[1], KEYS[2], ids)
  call('ZADD', KEYS[3], unpack(scores))
  account({ processed = KEYS[4], failed = KEYS[5], history = KEYS[6] }, now_s, #ids, 0, waits, runs)
  call('PUBLISH', ARGV[5], 'completed ' .. table.concat(ids, ' '))
end
return replies
