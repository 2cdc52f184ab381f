-- include: clock
-- Moves tasks of one queue that are due from scheduled and retry into pending.
--
-- KEYS   1 pending  2 scheduled  3 retry  4 archived
-- ARGV   1 clock offset  2 queue  3 prefix of task hashes  4 wake channel  5 how many per set, at most
--        6 events channel
-- Reply  how many entries were due
-- Crash  before: nothing; after: all. An id without a task goes to the janitor, who deletes its reverse key.
local call = redis.call
local now = clock()
local due, events = 0, {}
local ready = {}
for set, state in ipairs({ 'scheduled', 'retry' }) do
  local key_of_set = KEYS[set + 1]
  local ids = call('ZRANGEBYSCORE', key_of_set, '-inf', string.format('%.6f', now / 1000000), 'LIMIT', 0, ARGV[5])
  if #ids > 0 then call('ZREM', key_of_set, unpack(ids)) end
  due = due + #ids
  for _, id in ipairs(ids) do
    local key = ARGV[3] .. id
    local found = call('HGET', key, 'state')
    if found == state then
      call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds(now))
      ready[#ready + 1] = id
      events[#events + 1] = 'pending ' .. id
    elseif not found then
      call('ZADD', KEYS[4], 0, id)
    end
  end
end
if #ready > 0 then
  if call('LPUSH', KEYS[1], unpack(ready)) == #ready then call('PUBLISH', ARGV[4], ARGV[2]) end
  call('PUBLISH', ARGV[6], table.concat(events, '\n'))
end
return due
