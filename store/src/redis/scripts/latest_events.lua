-- Returns the latest event of each reference of a project.
-- KEYS: events of the project. ARGV: the longest value, the most references.
local events = KEYS[1]
local kind = redis.call('TYPE', events).ok
if kind ~= 'hash' then return {} end
local values = {}
for _, field in ipairs(redis.call('HKEYS', events)) do
  if #values == tonumber(ARGV[2]) then break end
  if string.sub(field, 1, 1) == 'r' and redis.call('HSTRLEN', events, field) <= tonumber(ARGV[1]) then
    values[#values + 1] = redis.call('HGET', events, field)
  end
end
return values
