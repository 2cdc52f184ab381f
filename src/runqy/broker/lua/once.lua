-- Included where the record of an idempotency key changes its life. The record is the task's as long as it names
-- it: after it ran out, the same key may have made another task.

local function owns_once(prefix, digest, id)
  local record = redis.call('GET', prefix .. digest)
  return record and string.sub(record, 1, #id + 1) == id .. ' '
end

-- The task has ended: the record stays until a day after its making, or goes.
local function release_once(prefix, digest, id, since, now_s)
  if owns_once(prefix, digest, id) then
    redis.call('EXPIREAT', prefix .. digest, math.max((tonumber(since or '') or 0) + 86400, now_s + 1))
  end
end
