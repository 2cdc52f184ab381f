-- include: clock
-- Accepts tasks into one queue.
--
-- KEYS   1 pending list  2 scheduled zset
-- ARGV   1 clock offset  2 queue  3 prefix of task hashes  4 prefix of idempotency records  5 wake channel
--        6 max_pending (0: no bound)  7 number of profiles
--        profiles: count of fields and values, then field, value, ... (the stamps that many tasks share)
--        tasks: id, message, profile (from 1), run_at (unix s, or empty), idempotency digest (or empty), body hash
-- Reply  per task: status and id, flat; status is created, repeated, mismatch, exists or full
-- Crash  before: nothing; after: all. The reverse keys are written beside this script in the same pipeline.
local now = clock()
local since = nanoseconds(now)
local call = redis.call
local task_prefix, once_prefix, bound = ARGV[3], ARGV[4], tonumber(ARGV[6])
local profiles, at = {}, 8
for p = 1, tonumber(ARGV[7]) do
  local size = tonumber(ARGV[at])
  local fields = {}
  for i = 1, size do fields[i] = ARGV[at + i] end
  profiles[p] = fields
  at = at + size + 1
end

local pushed, due, replies = {}, {}, {}
local room
if bound > 0 then room = bound - call('LLEN', KEYS[1]) end

for i = at, #ARGV, 6 do
  local id, run_at, once = ARGV[i], ARGV[i + 3], ARGV[i + 4]
  local key = task_prefix .. id
  local status, known = 'created', id
  local used = once ~= '' and call('GET', once_prefix .. once)
  if used then
    local first, hash = string.match(used, '^(.-) (%S*) %d+$')
    known = first or id
    status = hash == ARGV[i + 5] and 'repeated' or 'mismatch'
  elseif call('EXISTS', key) == 1 then
    -- The same message means that the caller repeats a call whose answer was lost.
    status = call('HGET', key, 'msg') == ARGV[i + 1] and 'repeated' or 'exists'
  elseif room and room <= 0 then
    status = 'full'
  end
  if status == 'created' then
    local fields = profiles[tonumber(ARGV[i + 2])]
    if run_at ~= '' and tonumber(run_at) * 1000000 > now then
      call('HSET', key, 'msg', ARGV[i + 1], 'state', 'scheduled', unpack(fields))
      due[#due + 1] = run_at
      due[#due + 1] = id
    else
      call('HSET', key, 'msg', ARGV[i + 1], 'state', 'pending', 'pending_since', since, unpack(fields))
      pushed[#pushed + 1] = id
    end
    if once ~= '' then
      -- No expiry while the task lives: the script that ends it sets one.
      local seconds = string.format('%.0f', math.floor(now / 1000000))
      call('SET', once_prefix .. once, id .. ' ' .. ARGV[i + 5] .. ' ' .. seconds)
      call('HSET', key, 'once', once, 'once_since', seconds)
    end
    if room then room = room - 1 end
  end
  replies[#replies + 1] = status
  replies[#replies + 1] = known
end

if #due > 0 then call('ZADD', KEYS[2], unpack(due)) end
if #pushed > 0 and call('LPUSH', KEYS[1], unpack(pushed)) == #pushed then call('PUBLISH', ARGV[5], ARGV[2]) end
return replies
