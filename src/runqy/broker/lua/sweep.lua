-- Takes history entries away whose task is gone, once their reverse keys are gone too.
--
-- KEYS   1 completed  2 archived   ARGV  1 clock offset  2 prefix of task hashes; then the ids
-- Reply  how many were taken away   Crash  before: nothing, the next purge finds them; after: all
local swept = 0
for i = 3, #ARGV do
  if redis.call('EXISTS', ARGV[2] .. ARGV[i]) == 0 then
    swept = swept + redis.call('ZREM', KEYS[1], ARGV[i]) + redis.call('ZREM', KEYS[2], ARGV[i])
  end
end
return swept
