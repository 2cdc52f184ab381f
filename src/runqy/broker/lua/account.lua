-- Included where attempts end: counters, the minute and hour history, the task's own list of attempts.

-- Histograms are tables of bucket to count. The bucket of a duration in microseconds: each is 20 % wider than the
-- one before, the first ends at 0.1 ms. The Python side (broker/history.py) holds the same two numbers.
local floor, log = math.floor, math.log

local function count(histogram, us)
  local b = us < 100 and 0 or 1 + floor(log(us / 100) / 0.1823215567939546)
  histogram[b] = (histogram[b] or 0) + 1
end

-- Adds a histogram to its stored form, a flat list of bucket and count.
local function merge(flat, histogram)
  local place = {}
  for i = 1, #flat, 2 do place[flat[i]] = i + 1 end
  for b, c in pairs(histogram) do
    b = tonumber(b)
    local at = place[b]
    if at then
      flat[at] = flat[at] + c
    else
      flat[#flat + 1] = b
      flat[#flat + 1] = c
    end
  end
  return flat
end

-- Adds to one slot of the history: {processed, failed, wait histogram, run histogram}.
local function add(key, field, processed, failed, waits, runs, expire_at)
  local stored = redis.call('HGET', key, field)
  local slot = stored and cmsgpack.unpack(stored) or { 0, 0, {}, {} }
  slot[1] = slot[1] + processed
  slot[2] = slot[2] + failed
  merge(slot[3], waits)
  merge(slot[4], runs)
  if redis.call('HSET', key, field, cmsgpack.pack(slot)) == 1 then redis.call('EXPIREAT', key, expire_at) end
end

-- The UTC date of a unix second (days to civil date, Hinnant's algorithm).
local function date(now_s)
  local z = math.floor(now_s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02d', year, month, day)
end

local NINETY_DAYS = 7776000

local function raise(key, n, day)
  redis.call('INCRBY', key, n)
  local daily = key .. ':' .. day
  if redis.call('INCRBY', daily, n) == n then redis.call('EXPIRE', daily, NINETY_DAYS) end
end

-- Counts the attempts that one call ended. waits and runs are histograms (tables of bucket to count).
local function account(keys, now_s, processed, failed, waits, runs)
  if processed == 0 then return end
  local day = date(now_s)
  raise(keys.processed, processed, day)
  if failed > 0 then raise(keys.failed, failed, day) end
  local hour_number, day_number = math.floor(now_s / 3600), math.floor(now_s / 86400)
  add(keys.history .. ':m:' .. hour_number, math.floor(now_s / 60) % 60, processed, failed, waits, runs,
    (hour_number + 1) * 3600 + 86400)
  add(keys.history .. ':h:' .. day_number, hour_number % 24, processed, failed, waits, runs,
    (day_number + 1) * 86400 + 2592000)
end

local KEPT_ATTEMPTS = 20

-- The task's own history: a line of JSON per attempt, newest last, the last 20 of them.
local function with_line(attempts, line)
  if not attempts or attempts == '' then return line end
  local _, lines = string.gsub(attempts, '\n', '')
  if lines + 1 >= KEPT_ATTEMPTS then attempts = string.sub(attempts, string.find(attempts, '\n', 1, true) + 1) end
  return attempts .. '\n' .. line
end

-- [number, worker, end in unix ms, run time in ms, ending, reason]; `worker` is JSON already.
local function attempt_line(number, worker, end_us, run_us, ending, reason)
  return string.format('[%d,%s,%.0f,%.3f,"%s",%s]', number, worker, end_us / 1000, run_us / 1000, ending,
    reason == '' and '""' or cjson.encode(string.sub(reason, 1, 500)))
end
