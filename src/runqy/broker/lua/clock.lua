-- Included in every script. ARGV[1] is always an offset in microseconds, zero outside tests.

-- Unix time in microseconds: Redis's own clock, so that no host's wall clock decides anything.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2] + tonumber(ARGV[1])
end

-- pending_since as asynq writes it: nanoseconds, in decimal.
local function nanoseconds(us)
  return string.format('%.0f000', us)
end

-- pending_since in microseconds; the original's worker wrote seconds, asynq and we write nanoseconds.
local function since_us(text)
  local value = tonumber(text or '')
  if not value then return nil end
  if value > 1e12 then return value / 1000 end
  return value * 1000000
end
