#!lua flags=allow-oom
-- include: clock
-- Takes webhooks of one queue that are due. Whoever took one has it alone until the claim ends.
--
-- KEYS   1 outbox zset  2 records hash
-- ARGV   1 clock offset  2 how many, at most  3 how long a claim lasts (s)  4 life of keys that nobody reads (s)
-- Reply  flat: id, token of the claim, record or false; the token is the score at which the claim ends
-- Crash  before: nothing; after: all. One that is taken and not settled is due again when the claim has ended.
local call = redis.call
local now = clock() / 1000000
local token = string.format('%.6f', now + tonumber(ARGV[3]))
local taken = {}
for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now), 'LIMIT', 0, ARGV[2])) do
  call('ZADD', KEYS[1], token, id)
  taken[#taken + 1] = id
  taken[#taken + 1] = token
  taken[#taken + 1] = call('HGET', KEYS[2], id)
end
call('EXPIRE', KEYS[1], ARGV[4])
call('EXPIRE', KEYS[2], ARGV[4])
return taken
