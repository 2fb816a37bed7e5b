-- What is known of an agent: when it left, then its record at each replica; '' if there is none, '!' if what stands
-- there is no record.
-- KEYS: gone, then routes of each replica. ARGV: agent, most bytes.
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
