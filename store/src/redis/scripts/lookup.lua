-- Reads the records of one agent.
-- KEYS: gone, then the routes of each replica. ARGV: agent, greatest length in bytes.
-- Returns the value of each key; '' if there is none, '!' if it is too long or the key has a wrong type.
local found = {}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('HGET', key, ARGV[1])
  if not value then
    found[i] = ''
  elseif type(value) ~= 'string' or #value > tonumber(ARGV[2]) then
    found[i] = '!'
  else
    found[i] = value
  end
end
return found
