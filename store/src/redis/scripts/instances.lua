-- Reads the records of some agents.
-- KEYS: gone, then the routes of each replica. ARGV: greatest length in bytes, then agents.
-- Returns, for each key and in it for each agent, the value; '' if there is none, '!' if it is too long.
local found, agents = {}, { unpack(ARGV, 2) }
for _, key in ipairs(KEYS) do
  local values = redis.pcall('HMGET', key, unpack(agents))
  for i = 1, #agents do
    local value = not values.err and values[i]
    if not value then
      found[#found + 1] = ''
    elseif #value > tonumber(ARGV[1]) then
      found[#found + 1] = '!'
    else
      found[#found + 1] = value
    end
  end
end
return found
