-- Included where a script reads or changes a task message (protobuf, see tasks/message.proto).
-- Messages are changed by cutting out whole top-level fields and appending new ones, so that every field that
-- nobody here knows survives byte for byte.

local byte, sub, char = string.byte, string.sub, string.char

local function varint(value)
  local out = {}
  while value >= 128 do
    out[#out + 1] = char(value % 128 + 128)
    value = math.floor(value / 128)
  end
  out[#out + 1] = char(value)
  return table.concat(out)
end

local function read_varint(msg, at)
  local value, scale = 0, 1
  while true do
    local b = byte(msg, at)
    if not b then return nil end
    at = at + 1
    if b < 128 then return value + b * scale, at end
    value = value + (b - 128) * scale
    scale = scale * 128
  end
end

-- Calls visit(field, first, last, value) for each top-level field; value only for varints.
-- Returns false for bytes that are no message.
local function walk(msg, visit)
  local at, size = 1, #msg
  while at <= size do
    local first = at
    local tag, value
    tag, at = read_varint(msg, at)
    if not tag then return false end
    local wire = tag % 8
    if wire == 0 then
      value, at = read_varint(msg, at)
      if not value then return false end
    elseif wire == 2 then
      local length
      length, at = read_varint(msg, at)
      if not length then return false end
      at = at + length
    elseif wire == 1 then
      at = at + 8
    elseif wire == 5 then
      at = at + 4
    else
      return false
    end
    if at > size + 1 then return false end
    visit(math.floor(tag / 8), first, at - 1, value)
  end
  return true
end

-- The value of a varint field, or nil; the last occurrence counts.
local function message_number(msg, wanted)
  local found
  if not walk(msg, function(field, _, _, value) if field == wanted then found = value end end) then return nil end
  return found
end

-- msg without the fields in `dropped` (a set), and with `tail` (encoded fields) at its end.
local function splice(msg, dropped, tail)
  local kept, from = {}, 1
  local whole = walk(msg, function(field, first, last)
    if dropped[field] then
      if first > from then kept[#kept + 1] = sub(msg, from, first - 1) end
      from = last + 1
    end
  end)
  if not whole then return msg end
  kept[#kept + 1] = sub(msg, from)
  kept[#kept + 1] = tail
  return table.concat(kept)
end

-- How many retries the task has used: the larger of what hash and message say, since asynq counts in the message
-- only and the original's recovery in the hash only.
local function retries_used(text, msg)
  return math.max(tonumber(text or '') or 0, msg and message_number(msg, 6) or 0)
end

local FAILURE_FIELDS = { [6] = true, [7] = true, [11] = true }
local COMPLETION_FIELD = { [13] = true }

-- Fields 6 retried, 7 error_msg, 11 last_failed_at.
local function with_failure(msg, retried, reason, now_s)
  local tail = '\58' .. varint(#reason) .. reason .. '\88' .. varint(now_s)
  if retried > 0 then tail = '\48' .. varint(retried) .. tail end
  return splice(msg, FAILURE_FIELDS, tail)
end

-- Field 13 completed_at. `again` says that the message may hold one already.
local function with_completion(msg, now_s, again)
  local tail = '\104' .. varint(now_s)
  if again then return splice(msg, COMPLETION_FIELD, tail) end
  return msg .. tail
end
