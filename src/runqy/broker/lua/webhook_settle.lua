#!lua flags=allow-oom
-- include: clock
-- Writes what became of a try to send a webhook: gone from the outbox, or due again. A claim that has ended, or a
-- task that ended anew meanwhile, is left as it is; the try is noted all the same.
--
-- KEYS   1 outbox zset  2 records hash  3 history list
-- ARGV   1 clock offset  2 id  3 token of the claim  4 seconds until the next try, empty for none
--        5 record for the next try  6 line for the history  7 lines kept  8 life of the history (s)
-- Reply  1 settled, 0 not the owner of the claim
-- Crash  before: nothing; after: all
local call = redis.call
local id = ARGV[2]
local held = call('ZSCORE', KEYS[1], id)
local mine = held and math.abs(tonumber(held) - tonumber(ARGV[3])) < 0.0000005
if mine and ARGV[4] == '' then
  call('ZREM', KEYS[1], id)
  call('HDEL', KEYS[2], id)
elseif mine then
  call('ZADD', KEYS[1], string.format('%.6f', clock() / 1000000 + tonumber(ARGV[4])), id)
  call('HSET', KEYS[2], id, ARGV[5])
end
call('LPUSH', KEYS[3], ARGV[6])
call('LTRIM', KEYS[3], 0, ARGV[7] - 1)
call('EXPIRE', KEYS[3], ARGV[8])
return mine and 1 or 0
