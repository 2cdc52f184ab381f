#!lua flags=allow-oom
-- include: clock, once, places
-- Deletes tasks of one queue, with everything that belongs to them. Allowed while Redis is out of memory.
--
-- KEYS   1 pending  2 scheduled  3 retry  4 completed  5 archived  6 holes
-- ARGV   1 clock offset  2 prefix of task hashes  3 prefix of logs  4 prefix of idempotency records
--        5 events channel  6 states in which it is legal; then the ids
-- Reply  per id: the state in which the task was found, empty for one that is gone
-- Crash  before: nothing; after: all. The caller deletes the reverse keys right after and calls sweep.lua; if it
--        dies, the entry left in archived makes the janitor do it.
local call = redis.call
local now_s = math.floor(clock() / 1000000)
local keys = { pending = KEYS[1], scheduled = KEYS[2], retry = KEYS[3], completed = KEYS[4], archived = KEYS[5],
  holes = KEYS[6] }
local prefix, legal = ARGV[2], set_of(ARGV[6])
local replies, events = {}, {}
for i = 7, #ARGV do
  local id = ARGV[i]
  local key = prefix .. id
  local h = call('HMGET', key, 'state', 'pending_since', 'once', 'once_since', 'unique_key')
  local state = h[1]
  if state and legal[state] then
    leave(keys, prefix, id, state, since_us(h[2]))
    call('UNLINK', key, ARGV[3] .. id)
    call('ZADD', KEYS[5], 0, id)
    if h[3] then release_once(ARGV[4], h[3], id, h[4], now_s) end
    events[#events + 1] = 'deleted ' .. id
  end
  replies[#replies + 1] = state or ''
end
if #events > 0 then call('PUBLISH', ARGV[5], table.concat(events, '\n')) end
return replies
