-- include: clock
-- Pauses one queue, at once for every pickup.
--
-- KEYS   1 paused   ARGV  1 clock offset   Reply  1, or 0 if it was paused before   Crash  before or after
return redis.call('SET', KEYS[1], string.format('%.0f', math.floor(clock() / 1000000)), 'NX') and 1 or 0
