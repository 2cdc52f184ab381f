-- include: clock
-- Accepts tasks into one queue, all with the same stamps.
--
-- KEYS   1 pending list  2 scheduled zset  3 holes
-- ARGV   1 clock offset  2 queue  3 prefix of task hashes  4 prefix of idempotency records  5 wake channel
--        6 max_pending (0: no bound)  7 "1": the long form of a task (also where an id may occur twice)
--        8 number of stamps and their values; then field, value, ...
--        tasks: id, message; in the long form also run_at (unix s, or empty), idempotency digest (or empty),
--        body hash
-- Reply  per task that was not created: its position (from 0), status, id that is known; flat. The status is
--        repeated, mismatch, exists or full
-- Crash  before: nothing; after: all. The reverse keys are written beside this script in the same pipeline.
local now = clock()
local since = nanoseconds(now)
local call = redis.call
local task_prefix, once_prefix, bound = ARGV[3], ARGV[4], tonumber(ARGV[6])
local long = ARGV[7] == '1'
local step = long and 5 or 2
local first = 9 + tonumber(ARGV[8])
local pushed, due, replies = {}, {}, {}
local room
if bound > 0 then room = bound - call('LLEN', KEYS[1]) + (call('GET', KEYS[3]) or 0) end

-- Why the task can't be created, and under which id it is known; nil if it can.
local function refusal(i, key)
  local once = long and ARGV[i + 3] ~= '' and call('GET', once_prefix .. ARGV[i + 3])
  if once then
    local known, hash = string.match(once, '^(.-) (%S*) %d+$')
    return hash == ARGV[i + 4] and 'repeated' or 'mismatch', known
  end
  if call('EXISTS', key) == 1 then
    -- The same message, to which attempts only append, means that the caller repeats a call whose answer was lost.
    local msg = call('HGET', key, 'msg')
    local same = msg and string.sub(msg, 1, #ARGV[i + 1]) == ARGV[i + 1]
    return same and 'repeated' or 'exists', ARGV[i]
  end
  if room and #pushed >= room then return 'full', ARGV[i] end
end

local function create_long(i, key)
  local run_at, once = ARGV[i + 2], ARGV[i + 3]
  if run_at ~= '' and tonumber(run_at) * 1000000 > now then
    call('HSET', key, 'msg', ARGV[i + 1], 'state', 'scheduled', unpack(ARGV, 9, first - 1))
    due[#due + 1] = run_at
    due[#due + 1] = ARGV[i]
  else
    call('HSET', key, 'msg', ARGV[i + 1], 'state', 'pending', 'pending_since', since, unpack(ARGV, 9, first - 1))
    pushed[#pushed + 1] = ARGV[i]
  end
  if once ~= '' then
    -- No expiry while the task lives: the script that ends it sets one.
    local seconds = string.format('%.0f', math.floor(now / 1000000))
    call('SET', once_prefix .. once, ARGV[i] .. ' ' .. ARGV[i + 4] .. ' ' .. seconds)
    call('HSET', key, 'once', once, 'once_since', seconds, 'more', 1)
  end
end

local task_keys = {}
for i = first, #ARGV, step do task_keys[#task_keys + 1] = task_prefix .. ARGV[i] end
-- Nearly always all are new: asked once for all of them.
local unsure = long or room or call('EXISTS', unpack(task_keys)) > 0

local n = 0
for i = first, #ARGV, step do
  n = n + 1
  local key = task_keys[n]
  local status, known
  if unsure then status, known = refusal(i, key) end
  if status then
    replies[#replies + 1] = n - 1
    replies[#replies + 1] = status
    replies[#replies + 1] = known
  else
    if long then
      create_long(i, key)
    else
      call('HSET', key, 'msg', ARGV[i + 1], 'state', 'pending', 'pending_since', since, unpack(ARGV, 9, first - 1))
      pushed[#pushed + 1] = ARGV[i]
    end
  end
end

if #due > 0 then call('ZADD', KEYS[2], unpack(due)) end
if #pushed > 0 and call('LPUSH', KEYS[1], unpack(pushed)) == #pushed then call('PUBLISH', ARGV[5], ARGV[2]) end
return replies
