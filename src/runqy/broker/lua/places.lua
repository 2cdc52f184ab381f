-- Included where a waiting or ended task leaves its place. Needs clock.lua.

local SHORT = 10000

-- Takes an id out of the pending list. A long list is in the order of pending_since, so the place is found by
-- halving and blanked, which costs the same whatever the length; pickup drops blanks, `holes` counts them.
local function leave_pending(list, holes, prefix, id, since)
  local length = redis.call('LLEN', list)
  if length <= SHORT or not since then return redis.call('LREM', list, -1, id) end
  local low, high = 0, length - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local there = since_us(redis.call('HGET', prefix .. redis.call('LINDEX', list, -middle - 1), 'pending_since'))
    if there and there >= since then high = middle else low = middle + 1 end
  end
  -- Counted from the right, where the oldest is; a whole batch may share one stamp, and given-back tasks differ.
  local first = math.max(low - 300, 0)
  local window = redis.call('LRANGE', list, -math.min(low + 300, length), -first - 1)
  for i = 1, #window do
    if window[i] == id then
      redis.call('LSET', list, -(first + #window - i) - 1, '')
      redis.call('INCR', holes)
      return 1
    end
  end
  return redis.call('LREM', list, -1, id)
end

-- keys: pending, scheduled, retry, completed, archived, holes by name.
local function leave(keys, prefix, id, state, since)
  if state == 'pending' then return leave_pending(keys.pending, keys.holes, prefix, id, since) end
  return redis.call('ZREM', keys[state], id)
end

-- The states in which the action is legal, from a comma-separated argument (tasks/state.py decides).
local function set_of(text)
  local set = {}
  for word in string.gmatch(text, '[^,]+') do set[word] = true end
  return set
end
