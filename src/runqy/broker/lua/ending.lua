-- Included where a task ends. Needs once.lua.

local FOREVER = 3153600000
local retentions = {}

-- Score of the history entry, and the hash's expiry (false for never); as text, which Redis takes faster.
local function retention(now_s, ttl)
  local kept = retentions[ttl]
  if not kept then
    local seconds = tonumber(ttl)
    if seconds > 0 then
      local at = string.format('%.0f', now_s + seconds)
      kept = { at, at }
    else
      kept = { string.format('%.0f', now_s + FOREVER), false }
    end
    retentions[ttl] = kept
  end
  return kept[1], kept[2]
end

-- Puts a task that asked for it among the webhooks to send; what is known of an earlier end is forgotten. The field
-- holds the keys of the outbox and of its records, and the address.
local function tell_webhook(key, id, now_s)
  local webhook = redis.call('HGET', key, 'webhook')
  if not webhook then return end
  local outbox, records = string.match(webhook, '^(%S+) (%S+)')
  redis.call('ZADD', outbox, now_s, id)
  redis.call('HDEL', records, id)
end

-- Gives the task's hash, and what belongs to it, its end of life. The record of its idempotency key lives
-- until the task has ended, and at least a day from its making (`once_since`).
local function expire_with(key, prefixes, id, expire_at, once, once_since, now_s, logged)
  if expire_at then
    redis.call('EXPIREAT', key, expire_at)
    if logged then redis.call('EXPIREAT', prefixes.log .. id, expire_at) end
  end
  if once then release_once(prefixes.once, once, id, once_since, now_s) end
  tell_webhook(key, id, now_s)
end

-- Go's way to write whole seconds.
local function go_seconds(s)
  local h, m = math.floor(s / 3600), math.floor(s / 60) % 60
  if h > 0 then return h .. 'h' .. m .. 'm' .. s % 60 .. 's' end
  if m > 0 then return m .. 'm' .. s % 60 .. 's' end
  return s .. 's'
end
