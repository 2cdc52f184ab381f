-- include: clock
-- Renews the leases of tasks that a worker holds in one queue.
--
-- KEYS   1 lease zset
-- ARGV   1 clock offset  2 prefix of task hashes  3 lease (s); then id, token of each
-- Reply  { positions (from 0) of those that the caller no longer owns, positions of those that must be cancelled }
-- Crash  before: nothing; after: all. A lease entry that vanished is made again for its owner.
local call = redis.call
local lease = string.format('%.3f', clock() / 1000000 + tonumber(ARGV[3]))
local renewed, lost, cancelled = {}, {}, {}
for i = 4, #ARGV, 2 do
  local h = call('HMGET', ARGV[2] .. ARGV[i], 'state', 'attempt', 'cancel')
  local token = ARGV[i + 1]
  if h[1] == 'active' and h[2] and string.sub(h[2], 1, #token + 1) == token .. ' ' then
    renewed[#renewed + 1] = lease
    renewed[#renewed + 1] = ARGV[i]
    if h[3] then cancelled[#cancelled + 1] = (i - 4) / 2 end
  else
    lost[#lost + 1] = (i - 4) / 2
  end
end
if #renewed > 0 then call('ZADD', KEYS[1], unpack(renewed)) end
return { lost, cancelled }
