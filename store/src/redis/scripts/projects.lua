-- Reads the agents and the paths of some projects of a replica.
-- KEYS: routes. ARGV: cursor, greatest length of a value in bytes, number of fields to visit.
-- Returns the next cursor, '0' at the end, then pairs of field and value; '!' if the value is too long.
local page = redis.pcall('HSCAN', KEYS[1], ARGV[1], 'MATCH', '[pn]*', 'COUNT', ARGV[3])
if page.err then return { '0' } end
local found = { page[1] }
for i = 1, #page[2], 2 do
  found[#found + 1] = page[2][i]
  found[#found + 1] = #page[2][i + 1] > tonumber(ARGV[2]) and '!' or page[2][i + 1]
end
return found
