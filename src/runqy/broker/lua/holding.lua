-- Included where tasks leave the hands of their workers.

-- Whether the attempt's record, `token pending_since picked-up`, is that of the token. Tasks of the original's
-- worker have no record; for them the token is empty.
local function owns(attempt, token)
  if token == '' then return not attempt end
  return attempt and string.find(attempt, token .. ' ', 1, true) == 1
end

-- The worker of a token, as JSON.
local function worker_of(token)
  return cjson.encode(string.match(token, '^(.*)#') or token)
end

local MANY = 8

-- Takes ids out of the active list and the leases. Of many, most are the oldest, which are popped together.
local function release(active, lease, ids)
  redis.call('ZREM', lease, unpack(ids))
  if #ids < MANY then
    for _, id in ipairs(ids) do redis.call('LREM', active, -1, id) end
    return
  end
  local wanted, back = {}, {}
  for _, id in ipairs(ids) do wanted[id] = true end
  local popped = redis.call('RPOP', active, #ids) or {}
  for i = #popped, 1, -1 do
    local id = popped[i]
    if wanted[id] then wanted[id] = nil else back[#back + 1] = id end
  end
  if #back > 0 then redis.call('RPUSH', active, unpack(back)) end
  for id in pairs(wanted) do redis.call('LREM', active, -1, id) end
end
