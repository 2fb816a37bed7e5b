-- Reads the agents of one project.
-- KEYS: the routes of each replica. ARGV: field, greatest length in bytes.
-- Returns, for each key, the value; '' if there is none, '!' if it is too long.
local found = {}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('HGET', key, ARGV[1])
  if type(value) ~= 'string' then
    found[i] = ''
  elseif #value > tonumber(ARGV[2]) then
    found[i] = '!'
  else
    found[i] = value
  end
end
return found
