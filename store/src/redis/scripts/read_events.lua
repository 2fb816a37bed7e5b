-- Reads events of the log after a position.
-- KEYS: log, newest removed event. ARGV: position, the most events, greatest length of an event in bytes.
-- Returns the position of the newest removed event and of the newest event, or '', then for each event its position, its key, and the event;
-- the last two are '' if they are missing or too long.
local removed = redis.pcall('GETRANGE', KEYS[2], 0, 63)
local newest = redis.pcall('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local found = { type(removed) == 'string' and removed or '', newest[1] and newest[1][1] or '' }
if newest.err then return found end
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])) do
  local key, event = '', ''
  for i = 1, #entry[2], 2 do
    local value = entry[2][i + 1]
    if #value <= tonumber(ARGV[3]) then
      if entry[2][i] == 'k' then key = value end
      if entry[2][i] == 'e' then event = value end
    end
  end
  found[#found + 1] = entry[1]
  found[#found + 1] = key
  found[#found + 1] = event
end
return found
