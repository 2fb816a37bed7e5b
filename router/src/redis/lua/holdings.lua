-- What is known of some agents: for each key in turn, for each agent in turn, what stands there; '' if there is nothing,
-- '!' if it is no record.
-- KEYS: gone, then routes of each replica. ARGV: most bytes, then agents.
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
