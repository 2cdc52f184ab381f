-- Gives reverse keys the life of their tasks, whatever it is now. Not on a Cluster: they share no slot.
--
-- KEYS   for each: reverse key, task hash   ARGV  1 clock offset
-- Reply  1
-- Crash  before: nothing; after: all. Since it copies what is there, it may come late or twice.
for i = 1, #KEYS, 2 do
  local life = redis.call('PEXPIRETIME', KEYS[i + 1])
  if life > 0 then
    redis.call('PEXPIREAT', KEYS[i], life)
  elseif life == -1 then
    redis.call('PERSIST', KEYS[i])
  elseif redis.call('HGET', KEYS[i], 'queue') == string.match(KEYS[i + 1], '{(.*)}') then
    redis.call('DEL', KEYS[i])
  end
end
return 1
