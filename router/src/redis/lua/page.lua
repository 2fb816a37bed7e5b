-- Some of a replica's records: where to go on, then agent and record in turn; '!' for what is no record.
-- KEYS: routes. ARGV: where to go on, about how many, most bytes.
local page = redis.pcall('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
if page.err then return { '0', '', '!' } end
local found = { page[1] }
for i = 1, #page[2], 2 do
  local agent, record = page[2][i], page[2][i + 1]
  if agent ~= 'generation' then
    local fits = #agent <= 20 and #record <= tonumber(ARGV[3])
    found[#found + 1] = fits and agent or ''
    found[#found + 1] = fits and record or '!'
  end
end
return found
