-- include: clock, message, once, places
-- Puts tasks of one queue into pending now: waiting ones at once, ended ones again. All start afresh: no expiry,
-- no retries used, their stamps kept.
--
-- KEYS   1 pending  2 scheduled  3 retry  4 completed  5 archived  6 holes
-- ARGV   1 clock offset  2 queue  3 prefix of task hashes  4 prefix of logs  5 prefix of idempotency records
--        6 wake channel  7 events channel  8 states in which it is legal; then the ids
-- Reply  per id: the state in which the task was found, empty for one that is gone
-- Crash  before: nothing; after: all. The reverse key loses its expiry in the same pipeline.
local call = redis.call
local now = clock()
local keys = { pending = KEYS[1], scheduled = KEYS[2], retry = KEYS[3], completed = KEYS[4], archived = KEYS[5],
  holes = KEYS[6] }
local prefix, legal = ARGV[3], set_of(ARGV[8])
local replies, events, ready = {}, {}, {}
local ENDED = { [6] = true, [13] = true }
for i = 9, #ARGV do
  local id = ARGV[i]
  local key = prefix .. id
  local h = call('HMGET', key, 'state', 'msg', 'once')
  local state = h[1]
  if state and legal[state] then
    leave(keys, prefix, id, state)
    call('PERSIST', key)
    call('PERSIST', ARGV[4] .. id)
    if h[3] and owns_once(ARGV[5], h[3], id) then call('PERSIST', ARGV[5] .. h[3]) end
    local fields = { 'state', 'pending', 'pending_since', nanoseconds(now) }
    if h[2] then fields[5], fields[6] = 'msg', splice(h[2], ENDED, '') end
    call('HSET', key, unpack(fields))
    call('HDEL', key, 'completed_at', 'retried', 'lost', 'ahead', 'result', 'cancel')
    ready[#ready + 1] = id
    events[#events + 1] = 'pending ' .. id
  end
  replies[#replies + 1] = state or ''
end
if #ready > 0 then
  if call('LPUSH', KEYS[1], unpack(ready)) == #ready then call('PUBLISH', ARGV[6], ARGV[2]) end
  call('PUBLISH', ARGV[7], table.concat(events, '\n'))
end
return replies
